"""What the driver says of the GPUs: the child program that asks it, the looks, and what they mean."""
