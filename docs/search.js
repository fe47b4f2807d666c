/* Ranks what the search of these pages finds. Sphinx puts it into language_data.js (`html_search_scorer`).
 *
 * First the pages whose title and index entries have most words of the query, then the others. Last, what the maintainers
 * and the log need: messages, changes, figures, docstrings.
 */

const LAST = [
  "changelog",
  "explanation/architecture",
  "explanation/asked-less",
  "explanation/faults",
  "reference/conformance",
  "reference/messages",
  "reference/python",
];

const stems = (text) => {
  const stemmer = new Stemmer();
  const words = text.toLowerCase().split(/[^\p{Letter}\p{Number}_]+/u);
  return new Set(words.filter((word) => word).map((word) => stemmer.stemWord(word)));
};

// The part of the query's words that the title and the index entries of a page have, from 0 to 1.
const shareInNames = (page) => {
  const { docnames, indexentries, titles } = Search._index;
  const number = docnames.indexOf(page);
  const entries = Object.entries(indexentries).filter(([, places]) => places.some(([file]) => file === number));
  const names = stems([titles[number], ...entries.map(([entry]) => entry)].join(" "));
  const asked = [...stems(new URLSearchParams(location.search).get("q"))];
  return asked.filter((word) => names.has(word)).length / asked.length;
};

var Scorer = {
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
  score: ([page, , , , score, , kind]) => {
    if (LAST.includes(page) || kind === "object") return score - 1000;
    return score + 100 * shareInNames(page);
  },
};

// The words of a query, without those that no page has: Sphinx would find nothing with them.
var splitQuery = (query) => {
  const words = query.split(/[^\p{Letter}\p{Number}_]+/u).filter((word) => word);
  const known = Object.keys(Search._index.terms).join(" ");
  const kept = words.filter((word) => [...stems(word)].every((stem) => known.includes(stem)));
  return kept.length ? kept : words;
};
