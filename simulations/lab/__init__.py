"""The laboratory: attacks and audits, references, and the tables and figures of the papers."""
