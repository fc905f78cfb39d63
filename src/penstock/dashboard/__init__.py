"""The dashboard: static files, built from web/, that a broker serves below /ui/."""
