// A queue of received items, with a queue of the calls that wait for an item.
'use strict';

class Inbox {
  constructor(patience) {
    this.patience = patience;
    this.items = [];
    this.waiting = [];
  }

  put(item) {
    const taker = this.waiting.shift();
    if (taker) taker(item);
    else this.items.push(item);
  }

  // Return a promise of the next item, which rejects if no item arrives within `patience` ms.
  take() {
    if (this.items.length) return Promise.resolve(this.items.shift());
    return new Promise((resolve, reject) => {
      const taker = (item) => {
        clearTimeout(timer);
        resolve(item);
      };
      const timer = setTimeout(() => {
        this.waiting = this.waiting.filter((other) => other !== taker);
        reject(new Error(`nothing arrived within ${this.patience} ms`));
      }, this.patience);
      this.waiting.push(taker);
    });
  }
}

module.exports = { Inbox };
