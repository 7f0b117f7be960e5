"""Users' own models for `convtwins match`: built, recorded layer by layer, and measured."""
