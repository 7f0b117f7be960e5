"""What happens to data once: decoded arrays are kept on disk and shared by every process."""
