"""Connections to exchanges: what they send now, as it arrives."""
