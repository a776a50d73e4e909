"""A store as one HTML file: tables, charts and the script that draws them, readable without a server or a network."""
