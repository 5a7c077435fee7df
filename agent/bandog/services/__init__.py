"""The services that bandog looks after."""
