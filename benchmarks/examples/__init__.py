"""Real encoders with uncertainty: one runnable file each."""
