"""The handles that users hold: a blocking and an asyncio face over one session."""
