"""What survives us: SQLite behind one writer thread."""
