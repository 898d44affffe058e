"""A launch script, read and never run.

shell_language     a script's commands and functions; words with variables filled in
launch_script      what the script would run, in a file of its own or inside a Kubernetes job
command_options    a command's options, and the GPUs that its launcher starts it on
"""
