"""Running things under a deadline: the executor, workers, the systemd watchdog."""
