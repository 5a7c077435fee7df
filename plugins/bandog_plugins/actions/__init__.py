"""Actions that come with bandog, one a file."""
