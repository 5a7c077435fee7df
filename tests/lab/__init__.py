"""The lab: real kernels and a real systemd in virtual machines, broken on purpose."""
