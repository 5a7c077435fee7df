"""Pure decisions: types, policies, the engine, budgets. Imports nothing of ours, does no I/O."""
