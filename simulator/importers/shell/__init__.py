"""A launch script, read and never run.

shell_language     a script's commands and functions; words with variables filled in
launch_script      what the script would run, in a file of its own or inside a Kubernetes job
kubernetes_job     the commands of such a job, and its GPUs
scheduler_headers  what a script's headers ask of Slurm, PBS or LSF, and what Slurm tells it
command_options    a command's options, and the GPUs that its launcher starts it on
"""
