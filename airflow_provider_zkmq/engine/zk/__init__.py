"""The only importer of kazoo: sessions, requests, and the drivers that carry procedures out."""
