"""The page to click: a local web app that answers every change of a job.

controls       what the page lets a person choose, and how its state becomes a job
job_answers    the questions of the page by name, answered as JSON, mistakes included: the step,
               "make it fit" and "make it faster", copies of the job
workers        processes that answer, so that nobody waits for another one's question
web_app        addresses, token and files; the only module that knows the web framework
page/          the page itself: HTML, style and scripts, no library, nothing from the network
"""
