"""Images and texts with learnt widths: retrieval, generality, inclusion, each with its control."""
