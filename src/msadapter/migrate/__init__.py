"""Tools that change a project so that it uses msadapter."""
