"""What users pass, read once: arrays, frames, texts, loaders, data sets, labels and class codes."""
