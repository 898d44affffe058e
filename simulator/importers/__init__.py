"""Foreign files read into jobs, profiles and measurements. Nothing that is read is run.

``formats`` lists the frameworks, a folder or file each. ``assembly`` parses anyone's file without
harm and joins it with what the user adds, ``settings`` accounts for every setting. Shared are
``hub_models`` (names of the Hugging Face hub), ``adapter_settings`` (LoRA), ``interpolation``
(references inside YAML), ``shell`` (launch scripts), ``python_source`` (settings in Python).
"""
