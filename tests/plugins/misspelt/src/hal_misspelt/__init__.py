"""A plugin that spells its hook wrong."""
