"""What `msadapter coverage` shows is found out here: PyTorch's public names, and how each is known to work."""
