"""How the commands end, where 0 (fine) and 1 (problems found) do not say enough."""

USAGE = 2
BAD_CONFIGURATION = 78  # EX_CONFIG of sysexits.h
