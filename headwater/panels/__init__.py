"""A project's dashboard: its panels answered from one boundary, and the page that shows them."""
