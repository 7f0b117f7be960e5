"""Models as users have them: found, recorded layer by layer, and measured for `convtwins match`."""
