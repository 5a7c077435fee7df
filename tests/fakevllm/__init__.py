"""A stand-in for `vllm serve`: its processes, its start, its pages, its ways to fail. Only the standard library."""
