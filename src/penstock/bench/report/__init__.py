"""Results: statistics, history, tables, charts and pages."""
