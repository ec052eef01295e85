"""The command line: one file a command, each with EXAMPLE, add_arguments(parser) and run(args) -> exit status.

Only the file of the command that was asked for is imported, and none of them imports anything heavy before `run`.
"""
