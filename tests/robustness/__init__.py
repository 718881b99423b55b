"""Commands under fuzzing, kills, damage and hostile environments."""
