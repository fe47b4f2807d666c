"""Values and helpers that every other package uses: limits, charges, verdicts, errors, logging."""
