/* Ranks what the search of these pages finds. Sphinx puts it into language_data.js (`html_search_scorer`).
 *
 * First come pages whose title and index entries have words of the query that few others have. Last comes what maintainers
 * need, or a log line leads to: messages, changes, figures, docstrings.
 */

{
  const LAST = [
    "changelog",
    "explanation/architecture",
    "explanation/asked-less",
    "explanation/faults",
    "explanation/promises",
    "reference/conformance",
    "reference/messages",
    "reference/python",
  ];

  const wordsOf = (text) => text.split(/[^\p{Letter}\p{Number}_]+/u).filter((word) => word);

  const stemsOf = (text) => {
    const stemmer = new Stemmer();
    return new Set(wordsOf(text.toLowerCase()).map((word) => stemmer.stemWord(word)));
  };

  let names = null; // of each page: the stems of its title and its index entries

  const namesOf = (page) => {
    const { docnames, indexentries, titles } = Search._index;
    if (!names) {
      const texts = titles.slice();
      for (const [entry, places] of Object.entries(indexentries)) {
        for (const [file, anchor] of places) if (!anchor) texts[file] += ` ${entry}`;
      }
      names = new Map(docnames.map((name, file) => [name, LAST.includes(name) ? new Set() : stemsOf(texts[file])]));
    }
    return names.get(page);
  };

  // The words of the query that a page has in its names, each by how few pages have it.
  const scoreOfNames = (page) => {
    const asked = [...stemsOf(new URLSearchParams(location.search).get("q"))];
    const found = asked.filter((word) => namesOf(page).has(word));
    const pages = (word) => [...names.values()].filter((stems) => stems.has(word)).length;
    return found.reduce((sum, word) => sum + 60 / pages(word), 0);
  };

  // The code of a message, which Sphinx splits at its hyphen: nearly all pages have the first part.
  const asksForCode = () => /\brl-\d{3}\b/i.test(new URLSearchParams(location.search).get("q"));

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
      if (page === "reference/messages" && asksForCode()) return score + 1000;
      return LAST.includes(page) || kind === "object" ? score - 1000 : score + scoreOfNames(page);
    },
  };

  // The pages that have at least half of the words: Sphinx itself finds only those that have all.
  const withAllWords = Search.performTermsSearch;
  Search.performTermsSearch = (words, excluded) => {
    const found = new Map();
    for (const word of words) {
      for (const result of withAllWords(new Set([word]), excluded)) {
        const [known, count] = found.get(result[0]) ?? [result, 0];
        if (count) known[4] += result[4];
        found.set(result[0], [known, count + 1]);
      }
    }
    return [...found.values()].filter(([, count]) => count >= words.size / 2).map(([result]) => result);
  };
}
