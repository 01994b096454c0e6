// The statuses of a topic's hour, from best to worst. A cell of the grid holds the rank; 0 is an hour without counts.

export const STATUSES = [
  { letter: " ", name: "nothing", text: "nothing was counted" },
  { letter: "e", name: "exact", text: "all tiers have the same records" },
  { letter: "r", name: "recompressed", text: "the same records by count and headers, in another codec" },
  { letter: "x", name: "explained", text: "records are missing for a known reason" },
  { letter: "q", name: "quarantined", text: "records were set aside by a load" },
  { letter: "p", name: "pending", text: "the hour is not over, or records are under way" },
  { letter: "u", name: "unknown", text: "a witness is missing" },
  { letter: "c", name: "changed", text: "as many records, but other contents" },
  { letter: "+", name: "extra", text: "more records than before" },
  { letter: "-", name: "missing", text: "fewer records than before" },
].map((status, rank) => ({ ...status, rank }));

export const NOTHING = 0;
export const UNKNOWN = 6;
const RANK_OF_LETTER = new Uint8Array(65536).fill(UNKNOWN); // what this page does not know is no good news
for (const status of STATUSES) RANK_OF_LETTER[status.letter.charCodeAt(0)] = status.rank;
const RANK_OF_NAME = new Map(STATUSES.map((status) => [status.name, status.rank]));

/** Returns the rank of the letter with a code. */
export const rankOfCode = (code) => RANK_OF_LETTER[code];

/** Returns the rank of a status's name; UNKNOWN for other names. */
export const rankOfName = (name) => RANK_OF_NAME.get(name) ?? UNKNOWN;

/** Starts of sentences about hours of a rank that need a person, by rank. */
export const TROUBLES = { 9: "Records are missing", 8: "There are more records than before", 7: "Contents are changed", 6: "A witness is missing" };

/** True if the rank needs a person: unknown or a difference that nobody explained. */
export const isTrouble = (rank) => rank >= UNKNOWN;

/** Returns a mark with the letter and colours of a status name. */
export const statusClass = (name) => `status s${rankOfName(name)}`;
