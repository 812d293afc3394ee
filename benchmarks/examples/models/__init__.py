"""One library an example: its model in, distributions over embeddings out.

pip install -e ".[models,pretrained]"
"""
