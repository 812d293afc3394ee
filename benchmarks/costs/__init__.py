"""What the library costs in time and memory, beside plain computations and peers."""
