//! What the engine reads off a template's source.
