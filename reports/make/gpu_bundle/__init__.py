"""Raw measurements of a GPU by one file that needs torch alone, and what they say.

__main__    write the file, or print what it would do
pack        the file: the folder ``device`` and the kernels of ``calibrate gpu``, as a zipapp
jobs        each training run as a job
compare     raw measurements against predictions, as a page and a picture
device      what runs on the machine with the GPU
"""
