elif ""
