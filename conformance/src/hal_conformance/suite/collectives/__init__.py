"""Collectives of several ranks (G1 to G4)."""
