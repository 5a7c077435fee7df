"""The seam to the machine: clocks, paths, processes, systemd."""
