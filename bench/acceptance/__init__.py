"""How much is accepted, and whether sampled text follows the target distribution."""
