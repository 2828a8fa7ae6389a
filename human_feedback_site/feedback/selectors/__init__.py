"""Selectors: functions that read the database for the API and the pages."""
