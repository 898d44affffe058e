"""The page to click: a local web app that answers every change of a job.

controls       what the page lets a person choose, and how its state becomes a job
step_answer    one simulated step as the page draws it
better_plans   "make it fit" and "make it faster"
copies         the job as YAML, a shell line, or another framework's settings
requests       the questions of the page by name, answered as JSON, mistakes included
workers        processes that answer, so that nobody waits for another one's question
web_app        addresses, token and files; the only module that knows the web framework
page/          the page itself: HTML, style and scripts, no library, nothing from the network
"""
