// How a search sorts what it finds: a heading with these words, such as a message, before settings and commands of that
// name, and these before the pages that only have the words somewhere. The other numbers are Sphinx's own.
var Scorer = {
  score: ([document, title, anchor, description, score, file, kind]) =>
    score + ({ title: 100, object: 50 }[kind] || 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
