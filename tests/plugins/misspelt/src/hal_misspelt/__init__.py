"""Be a plugin that spells its hook wrong."""
