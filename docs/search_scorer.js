// The usual scores (searchtools.js), but a setting with the searched name comes first.
var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score([, , , description, score]) {
    const isSetting = description?.startsWith("configuration value") && score >= this.objNameMatch + this.objPrio[1];
    return isSetting ? score + 100 : score;
  },
};
