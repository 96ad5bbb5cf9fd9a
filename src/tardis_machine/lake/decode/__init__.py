"""Codecs: serialized envelopes and payloads to Arrow columns, exact or reported."""
