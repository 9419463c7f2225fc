"""What several benchmarks use: services, prompts, tables, files, pictures."""
